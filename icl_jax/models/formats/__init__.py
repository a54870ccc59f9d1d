"""Hugging Face's formats: fields of config.json, names and layouts of tensors, by family."""
