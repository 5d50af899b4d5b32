"""Exports of Nsight Systems (`.sqlite`), and its reports where `nsys` can export them."""
