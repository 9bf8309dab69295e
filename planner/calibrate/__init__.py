"""A machine's own figures from what people measure, held to those of the catalog."""
