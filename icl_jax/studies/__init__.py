"""Studies: programs that make the papers' tables and figures."""
