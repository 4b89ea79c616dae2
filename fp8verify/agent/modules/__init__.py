"""Reading the model: its linear modules, what precision each promises, their names in a trace."""
