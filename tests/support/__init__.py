"""Builders of synthetic traces, runs and jobs, with known answers, shared by the tests."""
