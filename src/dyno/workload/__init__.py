"""Workloads: data sets, their settings, and the requests that are made of them."""
