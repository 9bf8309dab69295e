"""Shapes of the JSON documents, made into JSON Schemas at run time."""
