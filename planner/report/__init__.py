"""Reports over one result object: terminal tables, JSON, CSV."""
