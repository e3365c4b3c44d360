"""Data preparation: corpora, tokenizers and rows; imports hyla_lm, never the reverse."""
