"""Tests of the pages, in a real browser."""
