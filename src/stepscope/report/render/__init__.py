"""One renderer per format. Each lays out the blocks of any result."""
