"""What the latent codes of trained models tell: decoding, pictures, tables."""
