"""What every other part of durableflow stands on: values, rules and settings. No models here (design 3)."""
