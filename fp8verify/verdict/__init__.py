"""From evidence to a judgment: findings, the verdict, baselines and assertions."""
