"""Options from files and the environment: `[tool.fp8verify]`, `fp8verify.toml`, `FP8VERIFY_*`."""
