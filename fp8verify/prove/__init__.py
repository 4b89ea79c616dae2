"""Compare what kernel names say with what the GPU's own counters counted."""
