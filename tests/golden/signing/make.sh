#!/bin/sh
# Makes the bundles beside it, by model-signing of PyPI: pip install model-signing pyOpenSSL; sh make.sh
set -e
cd "$(dirname "$0")"
keys=$(mktemp -d)
printf 'a model of one file\n' > model.txt
openssl ecparam -name prime256v1 -genkey -noout -out "$keys/key.pem"
openssl pkey -in "$keys/key.pem" -pubout -out key.pub
openssl ecparam -name secp384r1 -genkey -noout -out "$keys/root.key"
openssl req -x509 -key "$keys/root.key" -subj "/CN=root of the tests" -days 36500 -out root.pem
openssl req -new -key "$keys/key.pem" -subj "/CN=signer of the tests" -out "$keys/signer.csr"
printf 'basicConstraints=CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=codeSigning\n' > "$keys/extensions"
openssl x509 -req -in "$keys/signer.csr" -CA root.pem -CAkey "$keys/root.key" -CAcreateserial -CAserial "$keys/serial" -days 36500 \
    -extfile "$keys/extensions" -out "$keys/signer.pem"
model_signing sign key model.txt --private_key "$keys/key.pem" --signature by-key.sig
model_signing sign certificate model.txt --private_key "$keys/key.pem" --signing_certificate "$keys/signer.pem" \
    --certificate_chain root.pem --signature by-certificate.sig
mkdir "$keys/folder"
cp model.txt "$keys/folder"
printf 'other words\n' > "$keys/folder/README.md"
model_signing sign key "$keys/folder" --private_key "$keys/key.pem" --signature folder-by-key.sig
rm -r "$keys"
