"""Configurations as vectors: the common loop nest, a platform's own parameters, and both.

`mapper` is what platforms share, `layout` and `latent` what they do not, `vectors` the two joined
and the nearest configuration across platforms. Only training an autoencoder needs torch.
"""
