"""Tests of Sediment, mirrored under the packages they test."""
