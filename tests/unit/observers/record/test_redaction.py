from observers.record.redaction import redact


def test_redact_takes_out_users_and_passwords_alone():
    text = "cannot reach mongodb://me:s3cret@h1:1,h2:2/db?tls=true&tlsCertificateKeyFilePassword=pw now"
    assert redact(text) == "cannot reach mongodb://h1:1,h2:2/db?tls=true now"
