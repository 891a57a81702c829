"""Guidelines turned into reports for people: terminal, Markdown and HTML, with charts."""
