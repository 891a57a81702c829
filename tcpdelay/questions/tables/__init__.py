"""Tables of paths: read from columns and files, and predicted row by row."""
