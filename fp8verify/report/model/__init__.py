"""The structs of reports."""
