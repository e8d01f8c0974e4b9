"""(Task, model, training) as one frozen configuration, schedules and presets. Nothing runs here."""
