"""Tests of the command `rmqlog`: in process where a run's output is asked, as processes where its end is."""
