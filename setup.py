"""Metadata lives in pyproject.toml; this file exists for tools that still look for it."""

from setuptools import setup

setup()
