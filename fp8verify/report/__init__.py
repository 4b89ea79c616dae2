"""One file for each form of the report; a reporter never judges and never reads a trace."""
