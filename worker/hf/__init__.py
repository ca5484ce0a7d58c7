"""What engines with Hugging Face model folders share: `folder` reads the folder, `engine` is all but the computing."""
