"""Fakes, contract suites and the exactness suite, for our tests and for yours."""
