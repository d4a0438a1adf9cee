"""Policy distillation by behavioural cloning (section 6.1)."""
