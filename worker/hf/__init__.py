"""Shared by engines whose models have a Hugging Face tokenizer: tokenizer, chat templates, common base of engines."""
