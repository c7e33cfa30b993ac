"""Pages that open from disk: HTML files that hold their data, style and scripts themselves."""
