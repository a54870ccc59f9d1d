"""Files of a run, on a disk or in a bucket: whole or not there, never mixed up."""
