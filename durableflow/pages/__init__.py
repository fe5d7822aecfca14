"""The page behind a decision link, and what it shares with the admin: the decide form and the JSON viewer (design 8)."""
