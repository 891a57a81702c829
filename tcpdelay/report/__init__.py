"""Reports for people, in the terminal, Markdown and HTML, with charts."""
