"""Tokenizer, chat template, bridge and parse: everything between items and token ids. Pure."""
