"""What latent codes cause: a trained model runs with the codes of other sequences."""
