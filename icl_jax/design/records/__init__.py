"""Groups to the records that training reads."""
