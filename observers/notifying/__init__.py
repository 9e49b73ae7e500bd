"""Notifications of runs: e-mail, chat and other services, through Apprise, in processes of their own."""
