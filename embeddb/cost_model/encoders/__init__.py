"""Configurations as vectors: loop nests (shared by platforms), a platform's own parameters, latents
of these, and the inputs of the models; the nearest configuration across platforms."""
