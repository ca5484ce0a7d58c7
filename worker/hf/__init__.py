"""What engines with Hugging Face model folders share: `vocabulary`, chat templates (`prompts`), and all of `engine` but
the computing.
"""
