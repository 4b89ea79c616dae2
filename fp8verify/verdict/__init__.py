"""From evidence to a judgement: findings, the verdict, baselines and assertions."""
