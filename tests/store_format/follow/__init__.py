"""Tests of following a store while a broker writes."""
