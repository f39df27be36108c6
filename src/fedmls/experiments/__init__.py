"""Experiments: runs -> a results folder -> figures. Each step knows only the one before; figures read files."""
