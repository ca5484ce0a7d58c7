"""What engines with a Hugging Face tokenizer share."""
