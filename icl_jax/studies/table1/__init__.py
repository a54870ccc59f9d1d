"""Table 1 of Levine et al. 2022: its runs, and the table beside the paper's."""
