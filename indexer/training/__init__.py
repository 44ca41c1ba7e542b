"""Training of what is learned: data, augmentation, models with a loss, and one resumable loop."""
