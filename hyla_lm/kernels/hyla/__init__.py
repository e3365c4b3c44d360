"""Attention whose value network is configured by the latent code (paper Eq. 6)."""
