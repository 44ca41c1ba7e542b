"""Training of models: data, augmentation, losses, and one resumable loop."""
