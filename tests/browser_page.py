"""A page in a browser, for the tests."""

from html.parser import HTMLParser

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--virtual-time-budget=4000"),
]


class Elements(HTMLParser):
    """The attributes of a page's elements, each with the text that directly follows its start."""

    def __init__(self, page):
        super().__init__()
        self.all = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.all.append({"tag": tag, "text": "", **dict(attrs)})

    def handle_data(self, data):
        if self.all:
            self.all[-1]["text"] += data

    def __getitem__(self, name):
        (found,) = [element for element in self.all if element.get("id") == name]
        return {**found, "text": found["text"].strip()}
