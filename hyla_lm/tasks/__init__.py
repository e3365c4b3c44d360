"""What is trained: the protocol of a task, the language model, suites beside it."""
