"""The input of training: files, rows, streams and tokenizers."""
